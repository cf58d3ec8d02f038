"""Programs that show what the registration of their operators is worth."""
