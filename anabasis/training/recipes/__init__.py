"""Recipes that come with Anabasis."""
