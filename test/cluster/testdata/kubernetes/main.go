// Command kubernetes contains all parts of a cluster for tests: etcd, the API server, the controllers, the scheduler, the
// kubelet and the proxy of Services. The first argument selects the part, the others are passed to it. One program is
// smaller and builds faster than six.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// parts are the parts with a Cobra command.
var parts = map[string]func() *cobra.Command{
	"apiserver":   apiserver.NewAPIServerCommand,
	"controllers": controllers.NewControllerManagerCommand,
	"scheduler":   func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":     func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"proxy":       proxy.NewProxyCommand,
}

func main() {
	if len(os.Args) > 1 {
		part, args := os.Args[1], os.Args[1:]
		if part == "etcd" {
			etcdmain.Main(args)
			return
		}
		if command, ok := parts[part]; ok {
			os.Args = args // which some parts read themselves
			os.Exit(cli.Run(command()))
		}
	}
	fmt.Fprintln(os.Stderr, "usage: kubernetes etcd|apiserver|controllers|scheduler|kubelet|proxy [flag…]")
	os.Exit(2)
}
