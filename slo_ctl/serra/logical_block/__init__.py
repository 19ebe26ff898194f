"""Finding a drive's logical block: the smallest write at which random ones are as fast as sequential ones."""
