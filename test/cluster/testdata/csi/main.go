// Command csi is a CSI driver for tests. Its volumes are folders, and its snapshots are copies of them.
//
//	csi DIR REGISTRY
//
// DIR contains volumes, snapshots and the socket csi.sock; REGISTRY is the folder in which the kubelet finds drivers.
// While the file volumes/ID.hold exists, snapshots of the volume ID create volumes/ID.held and wait before the copy. If the
// file volumes/ID.fault exists, they fail with its content.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const name = "folders.csi.cove.test"

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(dir, registry string) error {
	d := &driver{dir: dir}
	for _, kind := range []string{"volumes", "snapshots"} {
		if err := os.MkdirAll(filepath.Join(dir, kind), 0o755); err != nil {
			return err
		}
	}
	failed := make(chan error, 2)
	serve := func(socket string, register func(*grpc.Server)) {
		os.Remove(socket)
		l, err := net.Listen("unix", socket)
		if err != nil {
			failed <- err
			return
		}
		s := grpc.NewServer()
		register(s)
		failed <- s.Serve(l)
	}
	socket := filepath.Join(dir, "csi.sock")
	go serve(socket, func(s *grpc.Server) {
		csi.RegisterIdentityServer(s, d)
		csi.RegisterControllerServer(s, d)
		csi.RegisterNodeServer(s, d)
	})
	if err := os.MkdirAll(registry, 0o755); err != nil {
		return err
	}
	go serve(filepath.Join(registry, name+"-reg.sock"), func(s *grpc.Server) {
		registration.RegisterRegistrationServer(s, &registrar{socket: socket})
	})
	return <-failed
}

// registrar registers the driver with the kubelet.
type registrar struct {
	registration.UnimplementedRegistrationServer
	socket string
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: name, Endpoint: r.socket, SupportedVersions: []string{"1.0.0"}}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context,
	s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !s.PluginRegistered {
		log.Print("not registered: ", s.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	dir string
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	controller := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{Service: controller}}}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *driver) ControllerGetCapabilities(context.Context,
	*csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	out := &csi.ControllerGetCapabilitiesResponse{}
	for _, can := range []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT} {
		out.Capabilities = append(out.Capabilities,
			&csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: can}}})
	}
	return out, nil
}

// folder returns the folder of a volume or snapshot. Names become IDs, so that requests are idempotent.
func (d *driver) folder(kind, id string) string { return filepath.Join(d.dir, kind, id) }

func idOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:12])
}

// checkID rejects invalid IDs, such as paths.
func checkID(id string) error {
	if _, err := hex.DecodeString(id); err != nil || id == "" {
		return status.Errorf(codes.NotFound, "no such volume or snapshot: %q", id)
	}
	return nil
}

// make creates a copy of a folder atomically.
func (d *driver) make(to, from string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	part := to + ".part"
	if err := errors.Join(os.RemoveAll(part), os.Mkdir(part, 0o777)); err != nil {
		return err
	}
	if from != "" {
		if out, err := exec.Command("cp", "-a", from+"/.", part).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return os.Rename(part, to)
}

const defaultSize = 1 << 30

func (d *driver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	id, from, size := idOf(r.GetName()), "", r.GetCapacityRange().GetRequiredBytes()
	if size == 0 {
		size = defaultSize
	}
	if snapshot := r.GetVolumeContentSource().GetSnapshot().GetSnapshotId(); snapshot != "" {
		if err := checkID(snapshot); err != nil {
			return nil, err
		}
		if from = d.folder("snapshots", snapshot); size < d.sizeOf("snapshots", snapshot) {
			return nil, status.Error(codes.OutOfRange, "the snapshot is larger than the volume")
		}
	}
	err := d.make(d.folder("volumes", id), from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	if err = errors.Join(err, d.setSize("volumes", id, size)); err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id, CapacityBytes: size, ContentSource: r.GetVolumeContentSource()}}, nil
}

// The size of a volume is in a file next to it.
func (d *driver) setSize(kind, id string, size int64) error {
	return os.WriteFile(d.folder(kind, id)+".size", []byte(fmt.Sprint(size)), 0o644)
}

func (d *driver) sizeOf(kind, id string) (size int64) {
	data, _ := os.ReadFile(d.folder(kind, id) + ".size")
	fmt.Sscan(string(data), &size)
	return size
}

func (d *driver) remove(kind, id string) error {
	if checkID(id) != nil {
		return nil
	}
	return errors.Join(os.RemoveAll(d.folder(kind, id)), os.RemoveAll(d.folder(kind, id)+".size"))
}

func (d *driver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, d.remove("volumes", r.GetVolumeId())
}

func (d *driver) ValidateVolumeCapabilities(_ context.Context,
	r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: r.GetVolumeCapabilities()}}, nil
}

func (d *driver) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	volume, id := r.GetSourceVolumeId(), idOf(r.GetName())
	if err := checkID(volume); err != nil {
		return nil, err
	}
	beside := d.folder("volumes", volume)
	if fault, err := os.ReadFile(beside + ".fault"); err == nil {
		return nil, status.Error(codes.ResourceExhausted, strings.TrimSpace(string(fault)))
	}
	hold := beside + ".hold"
	if _, err := os.Stat(hold); err == nil {
		if err := os.WriteFile(beside+".held", nil, 0o644); err != nil {
			return nil, err
		}
		for ; err == nil && ctx.Err() == nil; _, err = os.Stat(hold) {
			time.Sleep(10 * time.Millisecond)
		}
	}
	size := d.sizeOf("volumes", volume)
	if err := errors.Join(d.make(d.folder("snapshots", id), d.folder("volumes", volume)), d.setSize("snapshots", id, size)); err != nil {
		return nil, err
	}
	info, err := os.Stat(d.folder("snapshots", id) + ".size")
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: id, SourceVolumeId: volume,
		SizeBytes: size, CreationTime: timestamppb.New(info.ModTime()), ReadyToUse: true}}, nil
}

func (d *driver) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	return &csi.DeleteSnapshotResponse{}, d.remove("snapshots", r.GetSnapshotId())
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node"}, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	id, target := r.GetVolumeId(), r.GetTargetPath()
	if err := checkID(id); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return nil, err
	}
	if mounted, err := isMount(target); mounted || err != nil {
		return &csi.NodePublishVolumeResponse{}, err
	}
	return &csi.NodePublishVolumeResponse{}, unix.Mount(d.folder("volumes", id), target, "", unix.MS_BIND, "")
}

func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	mounted, err := isMount(r.GetTargetPath())
	if mounted {
		err = unix.Unmount(r.GetTargetPath(), 0)
	}
	if err == nil {
		err = os.RemoveAll(r.GetTargetPath())
	}
	return &csi.NodeUnpublishVolumeResponse{}, err
}

func isMount(path string) (bool, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	return strings.Contains(string(table), " "+path+" "), err
}
