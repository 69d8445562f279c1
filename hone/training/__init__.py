"""Engines that hold weights and step them."""
