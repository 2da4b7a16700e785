package ec2

import (
	"regexp"
	"strconv"
	"strings"
)

// cpuXML is VCpuInfo. Source: API_VCpuInfo.html.
type cpuXML struct {
	Default        int `q:"defaultVCpus"`
	Cores          int `q:"defaultCores"`
	ThreadsPerCore int `q:"defaultThreadsPerCore"`
}

// memoryXML is MemoryInfo. Source: API_MemoryInfo.html.
type memoryXML struct {
	MiB int `q:"sizeInMiB"`
}

// processorXML is ProcessorInfo. Source: API_ProcessorInfo.html.
type processorXML struct {
	Architectures []string `q:"supportedArchitectures"`
}

// graviton matches the names of types with AWS's own ARM processors: a "g" after the
// generation, as in m6g, c7gn and hpc7g. Source: EC2 user guide, "Instance type naming
// conventions".
var graviton = regexp.MustCompile(`^[a-z]+[0-9]+[a-z]*g[a-z]*\.`)

// Architecture returns the processor architecture of an instance type.
func Architecture(instanceType string) string {
	if graviton.MatchString(instanceType) {
		return "arm64"
	}
	return "x86_64"
}

// hardware is the size of an instance type: virtual CPUs, threads of each core, and
// memory.
type hardware struct{ cpus, threads, mib int }

// hardwareOf returns the size of a type. Source: EC2 instance types guide,
// specifications of each family.
func hardwareOf(instanceType string) (hardware, bool) {
	const gib = 1024
	if h, ok := unusualHardware()[instanceType]; ok {
		return h, true
	}
	threads := 2
	if Architecture(instanceType) == "arm64" {
		threads = 1
	}
	family, size, _ := strings.Cut(instanceType, ".")
	if strings.HasPrefix(family, "t") {
		cpus, mib, ok := burstable(size)
		return hardware{cpus, threads, mib}, ok
	}
	cpus, ok := cpusOf(size)
	perCPU := map[byte]int{'c': 2 * gib, 'm': 4 * gib, 'r': 8 * gib}[family[0]]
	return hardware{cpus, threads, cpus * perCPU}, ok && perCPU > 0
}

// unusualHardware are the sizes that do not follow from the name.
func unusualHardware() map[string]hardware {
	const gib = 1024
	return map[string]hardware{
		"t2.micro":        {1, 1, gib},
		"t2.small":        {1, 1, 2 * gib},
		"t2.medium":       {2, 1, 4 * gib},
		"t2.large":        {2, 1, 8 * gib},
		"p5.48xlarge":     {192, 2, 2048 * gib},
		"trn1.32xlarge":   {128, 2, 512 * gib},
		"hpc7a.12xlarge":  {24, 1, 768 * gib},
		"hpc7a.24xlarge":  {48, 1, 768 * gib},
		"hpc7a.48xlarge":  {96, 1, 768 * gib},
		"hpc7a.96xlarge":  {192, 1, 768 * gib},
		"c7gn.metal":      {64, 1, 128 * gib},
		"c8gn.metal-48xl": {192, 1, 384 * gib},
	}
}

// burstable returns the size of a type of the families t3 and t4g.
func burstable(size string) (cpus, mib int, ok bool) {
	switch size {
	case "nano":
		return 2, 512, true
	case "micro":
		return 2, 1024, true
	case "small":
		return 2, 2048, true
	case "medium":
		return 2, 4096, true
	case "large":
		return 2, 8192, true
	case "xlarge":
		return 4, 16384, true
	case "2xlarge":
		return 8, 32768, true
	}
	return 0, 0, false
}

// cpusOf returns the virtual CPUs of a size: "medium" 1, "large" 2, "xlarge" 4, and
// four for each xlarge. The other bare metal types are as large as a 24xlarge.
func cpusOf(size string) (int, bool) {
	switch size {
	case "medium":
		return 1, true
	case "large":
		return 2, true
	case "xlarge":
		return 4, true
	case "metal":
		return 96, true
	}
	times, ok := strings.CutSuffix(size, "xlarge")
	n, err := strconv.Atoi(times)
	return 4 * n, ok && err == nil
}

// hardwareAttributes are the filters of DescribeInstanceTypes on hardware and network.
func hardwareAttributes() attributes[typeXML] {
	number := func(f func(typeXML) int) func(typeXML) []string {
		return func(t typeXML) []string { return one(strconv.Itoa(f(t))) }
	}
	cpu := func(f func(cpuXML) int) func(typeXML) []string {
		return func(t typeXML) []string {
			if t.CPUs == nil {
				return nil
			}
			return one(strconv.Itoa(f(*t.CPUs)))
		}
	}
	return attributes[typeXML]{
		"memory-info.size-in-mib": func(t typeXML) []string {
			if t.Memory == nil {
				return nil
			}
			return one(strconv.Itoa(t.Memory.MiB))
		},
		"network-info.ena-support":                  func(t typeXML) []string { return one(t.Network.ENA) },
		"network-info.ipv4-addresses-per-interface": number(func(t typeXML) int { return t.Network.IPv4 }),
		"network-info.ipv6-addresses-per-interface": number(func(t typeXML) int { return t.Network.IPv6 }),
		"network-info.ipv6-supported":               func(t typeXML) []string { return yesNo(t.Network.HasIPv6) },
		"network-info.maximum-network-cards":        number(func(t typeXML) int { return t.Network.Cards }),
		"network-info.maximum-network-interfaces":   number(func(t typeXML) int { return t.Network.Interfaces }),
		"network-info.network-performance":          func(t typeXML) []string { return one(t.Network.Performance) },
		"processor-info.supported-architecture":     func(t typeXML) []string { return t.Processor.Architectures },
		"vcpu-info.default-cores":                   cpu(func(c cpuXML) int { return c.Cores }),
		"vcpu-info.default-threads-per-core":        cpu(func(c cpuXML) int { return c.ThreadsPerCore }),
		"vcpu-info.default-vcpus":                   cpu(func(c cpuXML) int { return c.Default }),
	}
}
