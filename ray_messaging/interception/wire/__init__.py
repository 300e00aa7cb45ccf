"""Requests and answers between messagers and the interceptor."""
