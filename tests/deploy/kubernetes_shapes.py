"""What the kinds of deploy/kubernetes/ are made of: the fields that are used there, by Kubernetes' names and types. A field that is
not here is refused, as Kubernetes itself ignores one that is misspelt: add what you use, from the API's reference."""

STR, INT, BOOL = str, int, bool


class Map:
    """Keys of the author's choice, values of one shape."""

    def __init__(self, value):
        self.value = value


LABELS = Map(STR)
META = {'name': STR, 'namespace': STR, 'labels': LABELS}
SELECTOR = {'matchLabels': LABELS}
PROBE = {'httpGet': {'path': STR, 'port': STR}, 'periodSeconds': INT, 'timeoutSeconds': INT, 'failureThreshold': INT}
QUANTITIES = Map(STR)
SECCOMP = {'type': STR}
CONTAINER = {
    'name': STR, 'image': STR, 'command': [STR], 'args': [STR],
    'env': [{'name': STR, 'valueFrom': {'fieldRef': {'fieldPath': STR}}}],
    'ports': [{'name': STR, 'containerPort': INT}],
    'startupProbe': PROBE, 'livenessProbe': PROBE, 'readinessProbe': PROBE,
    'resources': {'requests': QUANTITIES, 'limits': QUANTITIES},
    'securityContext': {'runAsNonRoot': BOOL, 'runAsUser': INT, 'runAsGroup': INT, 'allowPrivilegeEscalation': BOOL,
                        'readOnlyRootFilesystem': BOOL, 'capabilities': {'drop': [STR], 'add': [STR]}},
    'volumeMounts': [{'name': STR, 'mountPath': STR, 'readOnly': BOOL}]}
POD = {
    'hostname': STR, 'nodeSelector': LABELS, 'tolerations': [{'operator': STR, 'effect': STR}], 'priorityClassName': STR,
    'automountServiceAccountToken': BOOL, 'enableServiceLinks': BOOL, 'terminationGracePeriodSeconds': INT,
    'securityContext': {'runAsNonRoot': BOOL, 'runAsUser': INT, 'runAsGroup': INT, 'fsGroup': INT, 'supplementalGroups': [INT],
                        'seccompProfile': SECCOMP},
    'initContainers': [CONTAINER], 'containers': [CONTAINER],
    'volumes': [{'name': STR, 'configMap': {'name': STR}, 'hostPath': {'path': STR, 'type': STR}}]}
TEMPLATE = {'metadata': {'labels': LABELS}, 'spec': POD}
KINDS = {
    ('v1', 'Namespace'): {},
    ('v1', 'ConfigMap'): {'data': Map(STR)},
    ('v1', 'Service'): {'spec': {'clusterIP': STR, 'selector': LABELS, 'ports': [{'name': STR, 'port': INT, 'targetPort': STR}]}},
    ('apps/v1', 'StatefulSet'): {'spec': {
        'serviceName': STR, 'replicas': INT, 'selector': SELECTOR, 'template': TEMPLATE,
        'volumeClaimTemplates': [{'metadata': META, 'spec': {'accessModes': [STR], 'resources': {'requests': QUANTITIES}}}]}},
    ('apps/v1', 'DaemonSet'): {'spec': {
        'selector': SELECTOR, 'template': TEMPLATE, 'minReadySeconds': INT,
        'updateStrategy': {'type': STR, 'rollingUpdate': {'maxUnavailable': INT}}}},
    ('apps/v1', 'Deployment'): {'spec': {'replicas': INT, 'selector': SELECTOR, 'template': TEMPLATE}},
    ('policy/v1', 'PodDisruptionBudget'): {'spec': {'minAvailable': INT, 'selector': SELECTOR}},
    ('networking.k8s.io/v1', 'NetworkPolicy'): {'spec': {
        'podSelector': SELECTOR, 'policyTypes': [STR],
        'ingress': [{'from': [{'namespaceSelector': SELECTOR, 'podSelector': SELECTOR}], 'ports': [{'protocol': STR, 'port': INT}]}]}}}


def problems(value, shape, path=''):
    """What of `value` is not of `shape`, one text each."""
    if isinstance(shape, (dict, Map)):
        if not isinstance(value, dict):
            return [f'{path}: not a map']
        found = []
        for key, inner in value.items():
            if isinstance(shape, Map):
                found += problems(inner, shape.value, f'{path}.{key}')
            elif key in shape:
                found += problems(inner, shape[key], f'{path}.{key}')
            else:
                found.append(f'{path}.{key}: unknown')
        return found
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f'{path}: not a list']
        return [problem for i, inner in enumerate(value) for problem in problems(inner, shape[0], f'{path}[{i}]')]
    return [] if type(value) is shape else [f'{path}: {value!r} is not {shape.__name__}']  # True is no int here


def problems_of(document):
    kind = (document.get('apiVersion'), document.get('kind'))
    if kind not in KINDS:
        return [f'{kind}: no such kind']
    return problems(document, {'apiVersion': STR, 'kind': STR, 'metadata': META, **KINDS[kind]}, kind[1])
