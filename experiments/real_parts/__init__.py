"""A VLM of real, frozen parts with a projector that is trained here, measured on counterfactual pictures."""
