package config

// NetworkName is the name of the node's network in its CNI configuration.
const NetworkName = "trunkline"
