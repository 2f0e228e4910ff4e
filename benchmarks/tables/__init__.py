"""Tabular models over many tables, group definitions and budgets: Veil beside its peers and models without privacy."""
