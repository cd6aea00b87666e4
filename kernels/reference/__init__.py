"""Defines the picture and its gradients in float64."""
