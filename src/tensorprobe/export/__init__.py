"""Dumps in the formats of other tools: TensorBoard, Model Explorer."""
