"""Classes of images that are rare and hard: Veil beside a linear model without privacy on the same features."""
