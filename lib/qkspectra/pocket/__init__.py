"""Small models in the architectures of large ones, trained by the project and shipped with it."""
