"""The sandbox, in which programs of users and models run. A server has one, `Runtime.sandbox`."""
