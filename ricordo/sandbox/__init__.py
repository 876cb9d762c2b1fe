"""The sandbox: programs of users and models run in it. A server has one, `Runtime.sandbox`."""
