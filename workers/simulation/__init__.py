"""What the simulator is made of: a model of machines, the real mailbox and queue, and nothing of torch."""
