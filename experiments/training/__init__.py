"""Training of the small world's tiny models: architectures, recipes, pictures and questions, losses, the dial."""
