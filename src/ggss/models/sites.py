"""The names of sites that every family may have: outputs of the vision-to-language projector's two Linears."""

MLP1, MLP2 = "projection-mlp1", "projection-mlp2"
