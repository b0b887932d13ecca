"""Networks with constraints: ours beside what people train them with. PyTorch is imported where it is used."""
