"""The real environment: states and their successors, rewards, graphs as arrays, and Gymnasium's interface to them."""
