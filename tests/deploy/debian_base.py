"""The smallest Debian 12, which tests make their own machines of. What was downloaded stays in EMS_CHROOT_CACHE, for the next run."""
import os
import tempfile

from packages import output

CACHE = os.environ.get('EMS_CHROOT_CACHE', os.path.expanduser('~/.cache/ems/chroot'))
MIRROR = os.environ.get('EMS_DEBIAN_MIRROR', 'http://deb.debian.org/debian')


def base():
    """A tar file; made when missing, by root and with debootstrap."""
    path = os.path.join(CACHE, 'bookworm.tar')
    if not os.path.exists(path):
        os.makedirs(CACHE, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            output('debootstrap', '--variant=minbase', 'bookworm', folder, MIRROR)
            os.chmod(folder, 0o755)  # other users than root live in it, too
            output('tar', '-C', folder, '-cf', path + '.part', '.')
        os.rename(path + '.part', path)
    return path


def unpack(folder):
    """Into a folder, which is made when missing."""
    os.makedirs(folder, exist_ok=True)
    output('tar', '-C', folder, '-xf', base())
    os.chmod(folder, 0o755)  # of a tar file made before that was so in it
