"""Compares operators with torch.library.custom_op's; what ``dutyfree check`` runs."""
