"""How a rank trains: the replica, the steps, and the record of them."""
