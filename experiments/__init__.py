"""What makes evidence and pages: it is not in the wheel, and nothing of ggss imports it."""
