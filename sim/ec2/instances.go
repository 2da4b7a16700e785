package ec2

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

func (a *api) instanceActions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[describeInstances, reservationList]{
			Name: "DescribeInstances", Page: page("DescribeInstances"), ReadOnly: true,
			Permit: onAnyResource[describeInstances], Do: listInstances,
		}),
		query.Handle(query.Spec[describeTypes, typeList]{
			Name: "DescribeInstanceTypes", Page: page("DescribeInstanceTypes"), ReadOnly: true,
			Permit: onAnyResource[describeTypes], Do: a.listTypes,
		}),
		query.Handle(query.Spec[nameInstances, returned]{
			Name: "RebootInstances", Page: page("RebootInstances"), Permit: permitReboot,
			Do: func(_ *query.Call, r *nameInstances) (*returned, error) {
				return done(a.cloud.Reboot(instanceIDs(r.IDs)))
			},
		}),
		query.Handle(query.Spec[terminateInstances, terminatedList]{
			Name: "TerminateInstances", Page: page("TerminateInstances"), Permit: permitTerminate, Do: a.terminate,
		}),
	}
}

type describeInstances struct {
	query.DryRun
	Page
	IDs     []string `q:"InstanceId"`
	Filters []Filter `q:"Filter"`
	// Managed has no effect: no instance is hidden.
	Managed bool `q:"IncludeManagedResources"`
}

type stateXML struct {
	Code int    `q:"code"`
	Name string `q:"name"`
}

func newStateXML(s cloud.InstanceState) stateXML {
	codes := map[cloud.InstanceState]int{
		cloud.Running: 16, cloud.ShuttingDown: 32, cloud.Terminated: 48, cloud.Stopped: 80,
	}
	return stateXML{codes[s], string(s)}
}

type placementXML struct {
	Zone    string `q:"availabilityZone"`
	ZoneID  string `q:"availabilityZoneId"`
	Tenancy string `q:"tenancy"`
}

type metadataXML struct {
	State    string `q:"state"`
	Tokens   string `q:"httpTokens"`
	HopLimit int    `q:"httpPutResponseHopLimit"`
	Endpoint string `q:"httpEndpoint"`
	IPv6     string `q:"httpProtocolIpv6"`
	Tags     string `q:"instanceMetadataTags"`
}

type profileXML struct {
	ARN string `q:"arn"`
	ID  string `q:"id"`
}

type instanceAttachmentXML struct {
	ID                  string    `q:"attachmentId"`
	DeviceIndex         int       `q:"deviceIndex"`
	NetworkCard         int       `q:"networkCardIndex"`
	Status              string    `q:"status"`
	AttachTime          time.Time `q:"attachTime"`
	DeleteOnTermination bool      `q:"deleteOnTermination"`
}

type instanceInterfaceXML struct {
	ID              string                `q:"networkInterfaceId"`
	Subnet          string                `q:"subnetId"`
	VPC             string                `q:"vpcId"`
	Description     string                `q:"description"`
	Owner           string                `q:"ownerId"`
	Status          string                `q:"status"`
	MAC             string                `q:"macAddress"`
	PrivateIP       string                `q:"privateIpAddress,omitempty"`
	PrivateDNSName  string                `q:"privateDnsName,omitempty"`
	SourceDestCheck bool                  `q:"sourceDestCheck"`
	Groups          []groupXML            `q:"groupSet"`
	Public          *publicXML            `q:"association"`
	Attachment      instanceAttachmentXML `q:"attachment"`
	PrivateIPs      []instanceAddressXML  `q:"privateIpAddressesSet"`
	IPv4Prefixes    []ipv4PrefixXML       `q:"ipv4PrefixSet,omitempty"`
	IPv6            []ipv6AddressXML      `q:"ipv6AddressesSet"`
	IPv6Prefixes    []ipv6PrefixXML       `q:"ipv6PrefixSet,omitempty"`
	Type            string                `q:"interfaceType"`
	Operator        operatorXML           `q:"operator"`
}

// instanceAddressXML is InstancePrivateIpAddress.
type instanceAddressXML struct {
	Address string     `q:"privateIpAddress"`
	DNSName string     `q:"privateDnsName,omitempty"`
	Primary bool       `q:"primary"`
	Public  *publicXML `q:"association"`
}

func instanceAddresses(s *cloud.State, i *cloud.Interface) []instanceAddressXML {
	var out []instanceAddressXML
	for n, a := range i.IPv4.Addresses {
		out = append(out, instanceAddressXML{a.String(), vpc.PrivateDNSName(a, s.Region), n == 0, newPublicXML(s, i, a)})
	}
	return out
}

type monitoringXML struct {
	State string `q:"state"`
}

// instanceXML is Instance. Source: API_Instance.html.
type instanceXML struct {
	ID              string                 `q:"instanceId"`
	Image           string                 `q:"imageId"`
	LaunchIndex     int                    `q:"amiLaunchIndex"`
	State           stateXML               `q:"instanceState"`
	PrivateDNSName  string                 `q:"privateDnsName"`
	Type            string                 `q:"instanceType"`
	Launched        time.Time              `q:"launchTime"`
	Placement       placementXML           `q:"placement"`
	Subnet          string                 `q:"subnetId,omitempty"`
	VPC             string                 `q:"vpcId,omitempty"`
	PrivateIP       string                 `q:"privateIpAddress,omitempty"`
	PublicDNSName   string                 `q:"dnsName"`
	PublicIP        string                 `q:"ipAddress,omitempty"`
	IPv6            string                 `q:"ipv6Address,omitempty"`
	SourceDestCheck *bool                  `q:"sourceDestCheck"`
	Groups          []groupXML             `q:"groupSet"`
	Architecture    string                 `q:"architecture"`
	Hypervisor      string                 `q:"hypervisor"`
	Virtualization  string                 `q:"virtualizationType"`
	ENA             bool                   `q:"enaSupport"`
	Profile         *profileXML            `q:"iamInstanceProfile"`
	Interfaces      []instanceInterfaceXML `q:"networkInterfaceSet"`
	Metadata        metadataXML            `q:"metadataOptions"`
	Monitoring      monitoringXML          `q:"monitoring"`
	Operator        operatorXML            `q:"operator"`
	Platform        string                 `q:"platformDetails"`
	Usage           string                 `q:"usageOperation"`
	// Volumes is always empty: there are no volumes here.
	Volumes []struct{} `q:"blockDeviceMapping"`
	Tags    []tagXML   `q:"tagSet,omitempty"`
}

type reservationXML struct {
	ID        string        `q:"reservationId"`
	Owner     string        `q:"ownerId"`
	Groups    []groupXML    `q:"groupSet"`
	Instances []instanceXML `q:"instancesSet"`
}

type reservationList struct {
	Reservations []reservationXML `q:"reservationSet"`
	NextToken    string           `q:"nextToken,omitempty"`
}

// listInstances puts every instance into a reservation of its own, as for an instance
// started alone.
func listInstances(c *query.Call, r *describeInstances) (*reservationList, error) {
	out, next, err := listPage(c, listing[*cloud.Instance]{
		kind: cloud.KindInstance, set: "instances", all: cloud.Sorted(c.State.Instances), ids: r.IDs, filters: r.Filters, page: r.Page,
		id:    func(n *cloud.Instance) string { return string(n.ID) },
		tags:  func(n *cloud.Instance) cloud.Tags { return n.Tags },
		attrs: instanceAttributes(c.State),
	}, func(n *cloud.Instance) reservationXML {
		return reservationXML{ID: ReservationID(n.ID), Owner: c.State.Account, Instances: []instanceXML{newInstanceXML(c.State, n)}}
	})
	return &reservationList{out, next}, err
}

// instanceAttributes are the filters of DescribeInstances.
func instanceAttributes(s *cloud.State) attributes[*cloud.Instance] {
	type instance = *cloud.Instance
	primary := func(f func(*cloud.Interface) []string) func(instance) []string {
		return func(n instance) []string {
			i := s.Primary(n.ID)
			if i == nil {
				return nil
			}
			return f(i)
		}
	}
	return merged(shownAttributes(s), absentAttributes(), ofInterfaces(s), attributes[instance]{
		"instance-id":         func(n instance) []string { return one(string(n.ID)) },
		"instance-state-name": func(n instance) []string { return one(string(n.State)) },
		"instance-type":       func(n instance) []string { return one(n.Type) },
		"availability-zone":   func(n instance) []string { return one(n.Zone) },
		"subnet-id":           func(n instance) []string { return one(string(n.Subnet)) },
		"vpc-id":              func(instance) []string { return one(string(s.VPC.ID)) },
		"owner-id":            func(instance) []string { return one(s.Account) },
		"private-ip-address":  primary(func(i *cloud.Interface) []string { return maybe(addressText(i.PrimaryIPv4())) }),
		"private-dns-name":    primary(func(i *cloud.Interface) []string { return maybe(DNSName(i.PrimaryIPv4(), s.Region)) }),
		"instance.group-id":   primary(func(i *cloud.Interface) []string { return each(i.Groups, groupText) }),
	})
}

// ReservationID returns the reservation in which an instance was started.
func ReservationID(id vpc.InstanceID) string { return "r-" + strings.TrimPrefix(string(id), "i-") }

// ImageID is the machine image reported for every instance; the embedded VPC has no
// images.
const ImageID = "ami-0123456789abcdef0"

func newInstanceXML(s *cloud.State, n *cloud.Instance) instanceXML {
	zone := n.Zone
	x := instanceXML{
		ID: string(n.ID), Image: ImageID, State: newStateXML(n.State), Type: n.Type,
		Launched:     n.Launched.Truncate(time.Second),
		Placement:    placementXML{Zone: zone, ZoneID: ZoneID(zone), Tenancy: "default"},
		Architecture: Architecture(n.Type), Hypervisor: "xen", Virtualization: "hvm", ENA: n.Limits.Nitro,
		Metadata: newMetadataXML(n.Metadata), Tags: tagsXML(n.Tags), Monitoring: monitoringXML{"disabled"},
		Platform: "Linux/UNIX", Usage: "RunInstances",
	}
	if n.Role != "" {
		x.Profile = &profileXML{ProfileARN(s, n.Role), ProfileID(n.Role)}
	}
	if n.State == cloud.Terminated {
		return x
	}
	x.Subnet, x.VPC = string(n.Subnet), string(s.VPC.ID)
	for _, i := range s.InterfacesOf(n.ID) {
		x.Interfaces = append(x.Interfaces, newInstanceInterfaceXML(s, i))
		if !i.Attachment.Primary() {
			continue
		}
		x.PrivateIP, x.PrivateDNSName = addressText(i.PrimaryIPv4()), DNSName(i.PrimaryIPv4(), s.Region)
		if p := newPublicXML(s, i, i.PrimaryIPv4()); p != nil {
			x.PublicIP, x.PublicDNSName = p.Address, p.DNSName
		}
		x.SourceDestCheck, x.Groups = &i.SourceDestCheck, groupsXML(s, i.Groups)
		if len(i.IPv6.Addresses) > 0 {
			x.IPv6 = i.IPv6.Addresses[0].String()
		}
	}
	return x
}

// ProfileARN returns the ARN of a role's instance profile.
func ProfileARN(s *cloud.State, role string) string {
	return fmt.Sprintf("arn:%s:iam::%s:instance-profile/%s", cloud.PartitionOf(s.Region).Name, s.Account, role)
}

// ProfileID returns the unique id of a role's instance profile.
func ProfileID(role string) string {
	id := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r - 'a' + 'A'
		}
		return 'X'
	}, role)
	return "AIPA" + (id + strings.Repeat("X", 16))[:16]
}

func newMetadataXML(o cloud.MetadataOptions) metadataXML {
	x := metadataXML{State: "applied", Tokens: "optional", HopLimit: o.HopLimit, Endpoint: "enabled", IPv6: "disabled", Tags: "enabled"}
	if o.TokensRequired {
		x.Tokens = "required"
	}
	if o.IPv6 {
		x.IPv6 = "enabled"
	}
	return x
}

func newInstanceInterfaceXML(s *cloud.State, i *cloud.Interface) instanceInterfaceXML {
	at := i.Attachment
	return instanceInterfaceXML{
		ID: string(i.ID), Subnet: string(i.Subnet), VPC: string(s.VPC.ID), Description: i.Description,
		Owner: s.Account, Status: i.Status(), MAC: i.MAC.String(), PrivateIP: addressText(i.PrimaryIPv4()),
		PrivateDNSName: DNSName(i.PrimaryIPv4(), s.Region), SourceDestCheck: i.SourceDestCheck,
		Groups: groupsXML(s, i.Groups), PrivateIPs: instanceAddresses(s, i), IPv6: ipv6Addresses(i),
		IPv4Prefixes: ipv4Prefixes(i.IPv4.Prefixes), IPv6Prefixes: ipv6Prefixes(i.IPv6.Prefixes), Type: string(i.Type),
		Operator: newOperatorXML(i), Public: newPublicXML(s, i, i.PrimaryIPv4()),
		Attachment: instanceAttachmentXML{
			ID: string(at.ID), DeviceIndex: at.DeviceIndex, NetworkCard: at.NetworkCard, Status: string(at.Status),
			AttachTime: at.Since.Truncate(time.Second), DeleteOnTermination: at.DeleteOnTermination,
		},
	}
}

type nameInstances struct {
	query.DryRun
	IDs []string `q:"InstanceId,required"`
}

type terminateInstances struct {
	query.DryRun
	IDs []string `q:"InstanceId"`
	// Force and SkipShutdown have no effect: the power of a guest is cut at once.
	Force        bool `q:"Force"`
	SkipShutdown bool `q:"SkipOsShutdown"`
}

func instanceIDs(ids []string) []vpc.InstanceID {
	var out []vpc.InstanceID
	for _, id := range ids {
		out = append(out, vpc.InstanceID(id))
	}
	return out
}

func permitReboot(c *query.Call, r *nameInstances) ([]iam.Request, error) {
	return permitInstances(c, r.IDs)
}

func permitTerminate(c *query.Call, r *terminateInstances) ([]iam.Request, error) {
	if len(r.IDs) == 0 {
		return nil, cloud.Errorf("InvalidParameterCombination", "No instances specified")
	}
	return permitInstances(c, r.IDs)
}

// permitInstances requires permission for instances. One error names all that do not
// exist.
func permitInstances(c *query.Call, ids []string) ([]iam.Request, error) {
	q := &authorization{call: c}
	var missing []string
	for _, id := range ids {
		q.instance(id)
		if c.State.Instances[vpc.InstanceID(id)] == nil {
			missing = append(missing, id)
		}
	}
	if len(missing) > 0 && !q.malformed {
		q.err = cloud.KindInstance.NotFound(missing...)
	}
	return q.result()
}

type stateChangeXML struct {
	ID       string   `q:"instanceId"`
	Current  stateXML `q:"currentState"`
	Previous stateXML `q:"previousState"`
}

type terminatedList struct {
	Instances []stateChangeXML `q:"instancesSet"`
}

func (a *api) terminate(c *query.Call, r *terminateInstances) (*terminatedList, error) {
	ids := instanceIDs(r.IDs)
	if err := a.cloud.Terminate(ids); err != nil {
		return nil, err
	}
	out, after := &terminatedList{}, a.cloud.State()
	for _, id := range ids {
		out.Instances = append(out.Instances, stateChangeXML{
			ID: string(id), Current: newStateXML(after.Instances[id].State), Previous: newStateXML(c.State.Instances[id].State),
		})
	}
	return out, nil
}

type describeTypes struct {
	query.DryRun
	Page
	Types   []string `q:"InstanceType"`
	Filters []Filter `q:"Filter"`
	// Unsupported has no effect: the region supports every type that the account knows.
	Unsupported bool `q:"IncludeUnsupportedInRegion"`
}

type cardXML struct {
	Index       int    `q:"networkCardIndex"`
	Performance string `q:"networkPerformance"`
	Interfaces  int    `q:"maximumNetworkInterfaces"`
}

type efaXML struct {
	Maximum int `q:"maximumEfaInterfaces"`
}

// networkXML is NetworkInfo. Its maximum of interfaces is of all cards together.
type networkXML struct {
	Interfaces  int       `q:"maximumNetworkInterfaces"`
	Cards       int       `q:"maximumNetworkCards"`
	DefaultCard int       `q:"defaultNetworkCardIndex"`
	CardList    []cardXML `q:"networkCards"`
	IPv4        int       `q:"ipv4AddressesPerInterface"`
	IPv6        int       `q:"ipv6AddressesPerInterface"`
	HasIPv6     bool      `q:"ipv6Supported"`
	ENA         string    `q:"enaSupport"`
	HasEFA      bool      `q:"efaSupported"`
	EFA         *efaXML   `q:"efaInfo"`
	Performance string    `q:"networkPerformance"`
}

// typeXML is InstanceTypeInfo. Source: API_InstanceTypeInfo.html.
type typeXML struct {
	Name       string     `q:"instanceType"`
	BareMetal  bool       `q:"bareMetal"`
	Hypervisor string     `q:"hypervisor,omitempty"`
	Network    networkXML `q:"networkInfo"`
	// A type that lab.yaml invents has no CPUs and no memory.
	CPUs      *cpuXML      `q:"vCpuInfo"`
	Memory    *memoryXML   `q:"memoryInfo"`
	Processor processorXML `q:"processorInfo"`
}

type typeList struct {
	Types     []typeXML `q:"instanceTypeSet"`
	NextToken string    `q:"nextToken,omitempty"`
}

func (a *api) listTypes(c *query.Call, r *describeTypes) (*typeList, error) {
	limits := a.cloud.TypeLimits()
	names := slices.Compact(slices.Sorted(slices.Values(r.Types)))
	if len(names) == 0 {
		names = sortedKeys(limits)
	}
	var all []typeXML
	for _, name := range names {
		l, ok := limits[name]
		if !ok {
			return nil, cloud.Errorf("InvalidInstanceType", "The following supplied instance types do not exist: [%s]", name)
		}
		all = append(all, newTypeXML(name, l))
	}
	items, next, err := listing[typeXML]{
		all: all, filters: r.Filters, page: r.Page, most: smallPage, strict: true,
		id:    func(t typeXML) string { return t.Name },
		attrs: typeAttributes(),
	}.list(c)
	return &typeList{Types: items, NextToken: next}, err
}

// typeAttributes are the filters of DescribeInstanceTypes.
func typeAttributes() attributes[typeXML] {
	return merged(hardwareAttributes(), attributes[typeXML]{
		"instance-type": func(t typeXML) []string { return one(t.Name) },
		"bare-metal":    func(t typeXML) []string { return yesNo(t.BareMetal) },
		"hypervisor":    func(t typeXML) []string { return maybe(t.Hypervisor) },
	})
}

func newTypeXML(name string, l vpc.Limits) typeXML {
	cards := max(1, l.Cards)
	t := typeXML{Name: name, BareMetal: l.BareMetal, Hypervisor: "xen", Network: networkXML{
		Interfaces: cards * l.ENIs, Cards: cards, IPv4: l.IPv4, IPv6: l.IPv6, HasIPv6: l.IPv6 > 0,
		ENA: "unsupported", HasEFA: l.EFAs > 0, Performance: "Up to 10 Gigabit",
	}}
	for card := range cards {
		t.Network.CardList = append(t.Network.CardList, cardXML{Index: card, Performance: "Up to 10 Gigabit", Interfaces: l.ENIs})
	}
	if l.EFAs > 0 {
		t.Network.EFA = &efaXML{l.EFAs}
	}
	if l.Nitro {
		t.Hypervisor, t.Network.ENA = "nitro", "required"
	}
	if l.BareMetal {
		t.Hypervisor = ""
	}
	t.Processor.Architectures = one(Architecture(name))
	if h, ok := hardwareOf(name); ok {
		t.CPUs = &cpuXML{Default: h.cpus, Cores: h.cpus / h.threads, ThreadsPerCore: h.threads}
		t.Memory = &memoryXML{MiB: h.mib}
	}
	return t
}
