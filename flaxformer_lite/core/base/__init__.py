"""What every room of the core needs: bounds of settings, paths of arrays, facts about devices."""
