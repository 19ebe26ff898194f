"""Reading the host: inventory and samples. Changes nothing."""
