"""Where weights come from and what shape they have."""
