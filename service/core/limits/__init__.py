"""What a key may do: scopes, domains, rates, requests at once."""
