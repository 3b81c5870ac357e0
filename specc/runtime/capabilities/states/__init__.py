"""Ways to commit the states of recurrent layers, a file each."""
