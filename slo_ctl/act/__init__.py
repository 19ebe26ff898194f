"""Making decisions so: everything that changes the world."""
