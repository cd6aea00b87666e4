"""Changes the rows of the splats' tensors."""
