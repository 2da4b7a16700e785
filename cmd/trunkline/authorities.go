package main

// The container image holds this program alone, so the file system has no list of public
// certificate authorities, and without one no certificate of EC2 or STS is valid. Where the
// file system has a list, such as one that the pod mounts, only that one counts.
import _ "golang.org/x/crypto/x509roots/fallback"
