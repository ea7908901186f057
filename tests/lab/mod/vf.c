// SPDX-License-Identifier: GPL-2.0
/*
 * Lab only. vGPUs as a vendor's driver has them on newer kernels: virtual functions that stay on the card's driver, which is
 * their VFIO driver as well. What a function becomes is written to it:
 *
 *   VF/nvidia/creatable_vgpu_types   "ID : vGPU Name" and what the card has room for now; nothing at a function that is one
 *   VF/nvidia/current_vgpu_type      0, or a number of that list; EPERM on a function that is one, EIO without room
 *
 * A function without a type cannot be opened. One that is open does not lose its type (EBUSY), and after the machine's end
 * the driver may take a moment: so many refusals more are in the parameter "lingering".
 */
#include <linux/device.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/vfio.h>
#include <linux/vfio_pci_core.h>

#include "vf.h"

static unsigned int lingering;
module_param(lingering, uint, 0600);

#define CARD_GB 48

static const struct type {
	unsigned int id, gb;
	const char *name;
} types[] = {
	{ 1150, 12, "NVIDIA L40S-12Q" },
	{ 1152, 24, "NVIDIA L40S-24Q" },
	{ 1154, 48, "NVIDIA L40S-48Q" },
	{ 1162, 12, "NVIDIA L40S-12C" },
};

struct labvf {
	struct vfio_pci_core_device core;
	struct list_head others;
	const struct type *type;
	unsigned int opened;
};

static LIST_HEAD(functions);
static DEFINE_MUTEX(functions_lock);

static struct labvf *labvf_of(struct device *dev)
{
	return container_of((struct vfio_pci_core_device *)dev_get_drvdata(dev), struct labvf, core);
}

/* One size for a card, and no more than it has. */
static bool has_room(const struct labvf *vf, const struct type *type)
{
	const struct pci_dev *card = pci_physfn(vf->core.pdev);
	unsigned int used = 0;
	struct labvf *other;

	list_for_each_entry(other, &functions, others) {
		if (pci_physfn(other->core.pdev) != card || !other->type)
			continue;
		if (other->type->gb != type->gb)
			return false;
		used += other->type->gb;
	}
	return used + type->gb <= CARD_GB;
}

static ssize_t creatable_vgpu_types_show(struct device *dev, struct device_attribute *attr, char *out)
{
	struct labvf *vf = labvf_of(dev);
	ssize_t length = sysfs_emit(out, "ID    : vGPU Name\n");
	size_t i;

	mutex_lock(&functions_lock);
	for (i = 0; i < ARRAY_SIZE(types) && !vf->type; i++)
		if (has_room(vf, &types[i]))
			length += sysfs_emit_at(out, length, "%-6u: %s\n", types[i].id, types[i].name);
	mutex_unlock(&functions_lock);
	return length;
}
static DEVICE_ATTR_RO(creatable_vgpu_types);

static ssize_t current_vgpu_type_show(struct device *dev, struct device_attribute *attr, char *out)
{
	struct labvf *vf = labvf_of(dev);
	unsigned int id;

	mutex_lock(&functions_lock);
	id = vf->type ? vf->type->id : 0;
	mutex_unlock(&functions_lock);
	return sysfs_emit(out, "%u\n", id);
}

static ssize_t current_vgpu_type_store(struct device *dev, struct device_attribute *attr, const char *text, size_t count)
{
	struct labvf *vf = labvf_of(dev);
	const struct type *type = NULL;
	unsigned int id;
	size_t i;
	int result = kstrtouint(text, 10, &id);

	if (result)
		return result;
	for (i = 0; i < ARRAY_SIZE(types); i++)
		if (types[i].id == id)
			type = &types[i];
	mutex_lock(&functions_lock);
	if (!id && (vf->opened || lingering)) {
		lingering -= lingering && !vf->opened;
		result = -EBUSY;
	} else if (!id) {
		vf->type = NULL;
	} else if (vf->type) {
		result = -EPERM;
	} else if (!type) {
		result = -EINVAL;
	} else if (!has_room(vf, type)) {
		result = -EIO;
	} else {
		vf->type = type;
	}
	mutex_unlock(&functions_lock);
	return result ? result : count;
}
static DEVICE_ATTR_RW(current_vgpu_type);

static struct attribute *labvf_attributes[] = {
	&dev_attr_creatable_vgpu_types.attr,
	&dev_attr_current_vgpu_type.attr,
	NULL,
};

static const struct attribute_group labvf_group = { .name = "nvidia", .attrs = labvf_attributes };
static const struct attribute_group *labvf_groups[] = { &labvf_group, NULL };

static int labvf_open(struct vfio_device *device)
{
	struct labvf *vf = container_of(device, struct labvf, core.vdev);
	int result = 0;

	mutex_lock(&functions_lock);
	if (vf->type)
		vf->opened++;
	else
		result = -ENODEV;
	mutex_unlock(&functions_lock);
	if (result)
		return result;
	result = vfio_pci_core_enable(&vf->core);
	if (result) {
		mutex_lock(&functions_lock);
		vf->opened--;
		mutex_unlock(&functions_lock);
		return result;
	}
	vfio_pci_core_finish_enable(&vf->core);
	return 0;
}

static void labvf_close(struct vfio_device *device)
{
	struct labvf *vf = container_of(device, struct labvf, core.vdev);

	vfio_pci_core_close_device(device);
	mutex_lock(&functions_lock);
	vf->opened--;
	mutex_unlock(&functions_lock);
}

static const struct vfio_device_ops labvf_ops = {
	.name = "labvf",
	.init = vfio_pci_core_init_dev,
	.release = vfio_pci_core_release_dev,
	.open_device = labvf_open,
	.close_device = labvf_close,
	.ioctl = vfio_pci_core_ioctl,
	.device_feature = vfio_pci_core_ioctl_feature,
	.read = vfio_pci_core_read,
	.write = vfio_pci_core_write,
	.mmap = vfio_pci_core_mmap,
	.request = vfio_pci_core_request,
	.match = vfio_pci_core_match,
	.bind_iommufd = vfio_iommufd_physical_bind,
	.unbind_iommufd = vfio_iommufd_physical_unbind,
	.attach_ioas = vfio_iommufd_physical_attach_ioas,
	.detach_ioas = vfio_iommufd_physical_detach_ioas,
};

int labvf_probe(struct pci_dev *pdev)
{
	struct labvf *vf = vfio_alloc_device(labvf, core.vdev, &pdev->dev, &labvf_ops);
	int result;

	if (IS_ERR(vf))
		return PTR_ERR(vf);
	dev_set_drvdata(&pdev->dev, &vf->core);
	mutex_lock(&functions_lock);
	list_add_tail(&vf->others, &functions);
	mutex_unlock(&functions_lock);
	result = vfio_pci_core_register_device(&vf->core);
	if (result)
		goto forget;
	result = device_add_groups(&pdev->dev, labvf_groups);
	if (!result)
		return 0;
	vfio_pci_core_unregister_device(&vf->core);
forget:
	mutex_lock(&functions_lock);
	list_del(&vf->others);
	mutex_unlock(&functions_lock);
	vfio_put_device(&vf->core.vdev);
	return result;
}

void labvf_remove(struct pci_dev *pdev)
{
	struct labvf *vf = labvf_of(&pdev->dev);

	device_remove_groups(&pdev->dev, labvf_groups);
	vfio_pci_core_unregister_device(&vf->core);
	mutex_lock(&functions_lock);
	list_del(&vf->others);
	mutex_unlock(&functions_lock);
	vfio_put_device(&vf->core.vdev);
}

/* sriov_numvfs: functions that say that they are of the card's kind, on the card's driver. */
int labvf_configure(struct pci_dev *card, int count)
{
	struct pci_dev *vf = NULL;
	int result;

	if (!count) {
		pci_disable_sriov(card);
		return 0;
	}
	result = pci_enable_sriov(card, count);
	if (result)
		return result;
	/* The maker is the card's already; the kind is still that of the hardware. */
	while ((vf = pci_get_device(card->vendor, PCI_ANY_ID, vf))) {
		if (!vf->is_virtfn || pci_physfn(vf) != card)
			continue;
		vf->device = card->device;
		vf->subsystem_vendor = card->subsystem_vendor;
		vf->class = card->class;
		kobject_uevent(&vf->dev.kobj, KOBJ_CHANGE);
		if (device_attach(&vf->dev) <= 0)
			pci_warn(vf, "no driver took it\n");
	}
	return count;
}
