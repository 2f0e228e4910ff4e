"""Convex worst-group solvers: losses with certified constants, saddle problems, phased ERM, online play, noisy SGD.

Nothing is imported here: plans know `veil.plans.controllers.solver`, methods know the rest.
"""
