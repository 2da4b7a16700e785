package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
	"github.com/trunkline/trunkline/sim/ca"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/world"
)

// StartWorld starts the embedded VPC of a lab. It is Options.World except in tests.
func StartWorld(ctx context.Context, l Lab, m Machines, log *slog.Logger) (World, error) {
	w, err := world.Start(ctx, world.Config{
		Spec: l.World, Roles: l.Roles, Faults: l.Faults,
		Namespace: NetNS(l.Name, "vpc"), Internet: NetNS(l.Name, "net"), NoPlatform: l.NoCloud,
		BindPrimaries: true,
		Latency:       time.Duration(l.Latency), Machines: m, Log: log.With("component", "world"),
	})
	if err != nil {
		return nil, err // w is a typed nil, which would not be a nil World
	}
	return w, nil
}

// writeOperator writes the key of the account's operator as an AWS shared credentials
// file.
func writeOperator(stateDir string, key iam.Credentials) error {
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", key.AccessKeyID, key.SecretAccessKey)
	if err := os.WriteFile(credentialsPath(stateDir), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the operator's key: %w", err)
	}
	return nil
}

// writeAuthority writes the CA of EC2 and STS: its certificate, and its key for root alone.
// Only the lab's nodes trust it.
func writeAuthority(stateDir string, a *ca.Authority) error {
	key, err := a.Key()
	if err != nil {
		return err
	}
	err = errors.Join(
		atomicfile.Write(filepath.Join(stateDir, "aws-ca.key"), key, 0o600),
		atomicfile.Write(filepath.Join(stateDir, "aws-ca.crt"), a.Certificate(), 0o644),
	)
	if err != nil {
		return fmt.Errorf("write the authority of EC2 and STS: %w", err)
	}
	return nil
}

func credentialsPath(stateDir string) string { return filepath.Join(stateDir, "aws-credentials") }
