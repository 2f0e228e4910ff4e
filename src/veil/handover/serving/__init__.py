"""Programs that travel with exported models; they import nothing of Veil but `tables/text.py`, which travels too."""
