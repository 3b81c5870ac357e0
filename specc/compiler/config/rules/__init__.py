"""What a configuration may say: rules about values, alone and together."""
