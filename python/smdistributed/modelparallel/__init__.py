from shoal import __version__ as __version__
