#!/bin/bash
# Builds kube-apiserver 1.20.2 from Debian's own source package into WORKDIR/bin, touching nothing outside it.
# About five minutes, 2 GB of scratch. Needs apt-get and dpkg-dev; the mirror is the machine's own.
set -euo pipefail
W=${1:?usage: build-kube-apiserver.sh WORKDIR}
mkdir -p "$W"/{apt/lists/partial,apt/cache/archives/partial,go,src,bin}
cd "$W"
mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources | head -1)
keyring=$(sed -n 's/^Signed-By: *//p' /etc/apt/sources.list.d/debian.sources | head -1)
printf 'deb-src [signed-by=%s] %s bookworm main\ndeb [signed-by=%s] %s bullseye main\n' "$keyring" "$mirror" "$keyring" "$mirror" > apt/sources.list
apt=(-o Dir::Etc::sourcelist="$W/apt/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$W/apt/lists"
     -o Dir::Cache="$W/apt/cache" -o APT::Sandbox::User=root -qq)
apt-get "${apt[@]}" update
(cd src && apt-get "${apt[@]}" source --download-only 'kubernetes=1.20.5+really1.20.2-1.1+deb12u1')
(cd go && apt-get "${apt[@]}" download golang-1.15-go golang-1.15-src && for d in *.deb; do dpkg -x "$d" .; done && rm -f ./*.deb)
tree=$W/gopath/src/k8s.io/kubernetes
rm -rf "$tree"; mkdir -p "$(dirname "$tree")"
(cd src && dpkg-source --no-check -x ./*.dsc "$tree" >/dev/null)
cd "$tree"
# Since 1.21 events about cluster-scoped objects (a Node) may also live in "default"; clients expect that today.
sed -i 's/len(event.InvolvedObject.Namespace) == 0 \&\& event.Namespace != metav1.NamespaceSystem/len(event.InvolvedObject.Namespace) == 0 \&\& event.Namespace != metav1.NamespaceDefault \&\& event.Namespace != metav1.NamespaceSystem/' pkg/apis/core/validation/events.go
export GOROOT=$W/go/usr/lib/go-1.15 GOPATH=$W/gopath GO111MODULE=off CGO_ENABLED=0 GOCACHE=$W/gocache GOFLAGS= PATH=$W/go/usr/lib/go-1.15/bin:$PATH
go build -o "$W/bin/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
dirs=$(grep -Rl --include='*.go' '+k8s:openapi-gen=' cmd pkg plugin vendor/k8s.io \
  | grep -v -e _test.go -e /code-generator/ -e /sample-apiserver/ -e /kube-openapi/ -e /gengo/ -e /testdata/ \
  | xargs -n1 dirname | LC_ALL=C sort -u | sed 's#^#k8s.io/kubernetes/#' | paste -sd,)
"$W/bin/openapi-gen" --logtostderr -i "$dirs" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
  -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$W/violations.report" 2>/dev/null
v=k8s.io/kubernetes/vendor/k8s.io/component-base/version
go build -trimpath -ldflags "-s -w -X $v.gitVersion=v1.20.2 -X $v.gitMajor=1 -X $v.gitMinor=20 -X $v.gitTreeState=clean" \
  -o "$W/bin/kube-apiserver" ./cmd/kube-apiserver
ls -l "$W/bin/kube-apiserver"
