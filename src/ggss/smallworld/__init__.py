"""The embedded world: painted portraits of a fictional town, questions about them, and tiny VLMs of real classes."""
