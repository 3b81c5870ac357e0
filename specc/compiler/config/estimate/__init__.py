"""What a step costs and brings, estimated before anything has run: times by a roofline, accepted tokens by rates."""
