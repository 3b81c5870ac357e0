"""The compiler: one configuration in, a wheel out. Of engines it knows what their presets say."""
