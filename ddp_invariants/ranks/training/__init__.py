"""The training of a rank: the replica, its steps, and the notes of them."""
