"""Speed and memory, beside the peers, in one process."""
