"""The server-rendered pages for people. They load nothing from anywhere and run no scripts."""
