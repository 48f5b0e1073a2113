"""See, steer, sparsify and prune the attention of your models, head by head."""
