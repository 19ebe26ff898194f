"""What is there and what it does: everything that reads the world and changes nothing."""
