//go:build netns

package world_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/world"
)

// awscli is Debian's, called by its path: another aws on the PATH may be another version.
const awscli = "/usr/bin/aws"

// enter runs its arguments with an instance's own resolv.conf and lists of authorities,
// which are mounted over the machine's in a mount namespace of its own. awscli has a list
// of its own.
const enter = `set -e
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/authorities" /etc/ssl/certs/ca-certificates.crt
of_awscli=/usr/lib/python3/dist-packages/awscli/botocore/cacert.pem
[ ! -e $of_awscli ] || mount --bind "$1/authorities" $of_awscli
shift
exec "$@"`

// run runs a program on the instance, which trusts authorities (PEM), with an environment
// that has nothing of AWS.
func (l *lab) run(authorities []byte, argv ...string) (stdout string, err error) {
	l.t.Helper()
	home := l.t.TempDir()
	for name, content := range map[string][]byte{"resolv.conf": []byte("nameserver 169.254.169.253\n"), "authorities": authorities} {
		if err := os.WriteFile(filepath.Join(home, name), content, 0o644); err != nil {
			l.t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(l.t.Context(), "unshare", append([]string{"--mount", "sh", "-c", enter, "sh", home}, argv...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := l.guest.Run(cmd.Start); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out.String(), nil
}

// role is what STS calls the instance.
func (l *lab) role() string {
	return fmt.Sprintf("arn:aws:sts::111122223333:assumed-role/node/%s", l.node.ID)
}

// On an instance that trusts the authority, a program with AWS's SDK and Debian's awscli
// work without endpoints or credentials in their configuration, as on EC2.
func TestUnmodifiedClientsWorkOnAnInstance(t *testing.T) {
	l := newLab(t)
	trusted := l.Authority().Certificate()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	subnet := string(l.node.Subnet)
	out, err := l.run(trusted, self, sdkProgram)
	if err != nil {
		t.Fatal(err)
	}
	var got seen
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	one := []string{subnet}
	if got.Regional != l.role() || got.Global != l.role() || !slices.Equal(got.Subnets, one) || !slices.Equal(got.DualOnes, one) {
		t.Errorf("the SDK got %+v, want %s and %s", got, l.role(), subnet)
	}

	for command, want := range map[string]string{
		"sts get-caller-identity": l.role(), "ec2 describe-subnets": subnet,
	} {
		t.Run("aws "+command, func(t *testing.T) {
			if _, err := os.Stat(awscli); err != nil {
				t.Skipf("%v (apt-get install awscli)", err)
			}
			// awscli does not read the region from instance metadata.
			out, err := l.run(trusted, append([]string{"env", "AWS_REGION=us-west-2", awscli}, strings.Fields(command)...)...)
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("%v, %s; want %s", err, out, want)
			}
		})
	}
}

// The machine's own authorities do not include the VPC's.
func TestOnlyClientsThatTrustTheAuthorityAcceptTheAPI(t *testing.T) {
	l := newLab(t)
	other, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(other, bytes.TrimSpace(l.Authority().Certificate())) {
		t.Fatal("the machine trusts the authority of this VPC")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.run(other, self, sdkProgram); err == nil || !strings.Contains(err.Error(), "certificate signed by unknown authority") {
		t.Errorf("a client that trusts the machine's authorities: %v", err)
	}
}

// A client that asks for what is not there learns it at once: a dropped packet would leave
// it waiting for its timeout.
func TestWhatThePlatformLacksIsRefusedAtOnce(t *testing.T) {
	l := newLab(t)
	for _, at := range []string{world.APIAddress + ":8443", vpc.MetadataV4.String() + ":443", "10.0.0.2:443"} {
		l.guest.Do(t, func() {
			c, err := net.DialTimeout("tcp", at, timeout)
			if err == nil {
				err = c.Close()
			}
			if !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("dial %s: %v, want refused", at, err)
			}
		})
	}
	for _, server := range []string{"10.0.0.2:53", "169.254.169.253:53"} {
		resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (c net.Conn, err error) {
			err = l.guest.Run(func() error {
				c, err = (&net.Dialer{Timeout: timeout}).DialContext(ctx, network, server)
				return err
			})
			return c, err
		}}
		for host, exists := range map[string]bool{
			"ec2.us-west-2.amazonaws.com": true, "ec2.us-west-2.api.aws": true, "sts.amazonaws.com": true,
			"sqs.us-west-2.amazonaws.com": false, "ec2.eu-west-1.amazonaws.com": false, "eks.us-west-2.api.aws": false,
		} {
			_, err := resolver.LookupHost(t.Context(), host)
			var missing *net.DNSError
			if (err == nil) != exists || !exists && (!errors.As(err, &missing) || !missing.IsNotFound) {
				t.Errorf("%s at %s: %v, want exists %v", host, server, err, exists)
			}
		}
	}
}
