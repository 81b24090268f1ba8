"""What a built bundle's videos are judged by."""
